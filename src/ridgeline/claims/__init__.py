"""What papers report, beside what is computed here for their settings: files of claims, their arithmetic, verdicts."""
