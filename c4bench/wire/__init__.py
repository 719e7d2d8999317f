"""How agents and master talk: typed calls and notes over mutually authenticated websockets; ranks go by the agent."""
