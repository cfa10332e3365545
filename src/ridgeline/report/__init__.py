"""The report and its text, json and trace forms."""
