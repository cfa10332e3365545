"""How applications that run at one time on one device share it."""
