from a2a.paddle import *
