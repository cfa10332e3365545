"""Power limits: what a board may draw, or how fast its clock may run."""
