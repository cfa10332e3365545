"""What users send: requests in time, read from traces or drawn from arrival processes, lengths and client mixes."""
