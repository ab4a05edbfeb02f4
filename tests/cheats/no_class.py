# cannot run, "defines no class ModelNew": the class has another name
class Model:
    pass
