"""What computes attention: C++ kernels, pieces that fit the cache, and their gradients."""
