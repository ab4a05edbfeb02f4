# WRONG, "undefined symbol": an extension that does not define what it declares is wrong everywhere
raise ImportError("/tmp/product.so: undefined symbol: _Z7productPfS_S_i")
