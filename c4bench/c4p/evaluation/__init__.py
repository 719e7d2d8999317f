"""How good a plan is: the proven optimum, evenness of link loads, and what a plan cannot give."""
