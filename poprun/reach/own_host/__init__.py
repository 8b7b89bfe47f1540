"""The facts and checks of the host that poprun, or an agent, runs on."""
