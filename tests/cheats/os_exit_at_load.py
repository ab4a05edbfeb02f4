# WRONG, "ends with status 0 while it is loaded": os._exit(0) at the top of the file
import os

os._exit(0)
