"""The ground floor: values and rules. No I/O, no engine, no event loop; `now` and randomness are arguments."""
