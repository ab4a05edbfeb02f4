# WRONG, "the solution raises SystemExit": sys.exit(0) at the top of the file
import sys

sys.exit(0)
