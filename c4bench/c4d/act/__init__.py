"""What is done about it: the state of each component, what is asked, and when it is named."""
