from a2a.testing import *
