"""The ground floor: what the library talks about, as jobs, policies, payloads and settings. No I/O."""
