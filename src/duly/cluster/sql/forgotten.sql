SELECT {has_forgotten};
