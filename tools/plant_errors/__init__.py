"""Does a kernel's test notice when the kernel is wrong? Errors are planted one by one, and its tests run."""
