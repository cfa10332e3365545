"""A local web app of the questions: a page with forms made of their table, answers from worker processes."""
