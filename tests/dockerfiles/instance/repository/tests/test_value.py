from package import VALUE
