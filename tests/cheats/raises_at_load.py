# WRONG, "the solution raises RuntimeError: no compiler": raises when it is loaded
raise RuntimeError("no compiler")
