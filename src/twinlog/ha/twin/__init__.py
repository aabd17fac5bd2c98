"""The twin dialect: what two twinlogs speak on the HA port. Pure cores; the shells are in `ha`."""
