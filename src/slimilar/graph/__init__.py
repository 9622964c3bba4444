"""Where the channels of a network go: one forward pass without data, read as labels, ties and groups.

    recorder (runs the model) -> rules (one per operator) -> collector (what was found) -> trace -> groups

Words of our own, which the field has none for:

atom        one index of one axis of one parameter or buffer, numbered over the whole network (row 5 of `conv1.weight`)
factor      an integer tensor that broadcasts to the shape of an activation and holds an atom at every position
labels      the factors of one tensor: which atoms stand where
tie         two atoms that have to leave together
unit        a class of tied atoms: usually one channel with its filter, its norm's entries and its consumers' kernels
group       the units that one layer, or several layers whose outputs are added, write
assumption  what a rule takes for granted about the user's code, because one forward pass cannot tell
probing     running a smaller copy to test the assumptions (`slimilar.surgery.probe`)
"""
