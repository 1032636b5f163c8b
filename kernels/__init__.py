"""Custom ops: the C++ library, its NumPy oracle, and the op contract."""
