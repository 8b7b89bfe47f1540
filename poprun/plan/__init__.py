"""Settings and the machine -> Plan: what each instance is given. Starts nothing."""
