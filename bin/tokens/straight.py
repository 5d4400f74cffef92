"""Is a chat template straight? It is if it writes one message after the other, without regard to later ones: then the
beginning of a chat is rendered as the beginning of the text, and one render shows where every message ends.

Templates that look ahead (loop.last, the last question's place, the number of messages) are not; neither are those
that this file does not understand.
"""

SEEN = {"index", "index0", "first", "previtem", "changed", "cycle"}     # of `loop`: what earlier messages decide


class Watched(list):
    """Messages that note the length of the text when the template asks for each of them, and for the end."""

    def __init__(self, messages, written):
        super().__init__(messages)
        self.written, self.bounds = written, []

    def __iter__(self):
        for message in super().__iter__():
            self.bounds.append(self.written())
            yield message
        self.bounds.append(self.written())


def is_straight(tree):
    """tree: of jinja2's parser."""
    from jinja2 import nodes
    if any(tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block))):
        return False
    aliases = {"messages"}
    for node in tree.body:                  # {% set loop_messages = messages %}
        if isinstance(node, nodes.Assign) and isinstance(node.node, nodes.Name) and node.node.name == "messages" and \
                isinstance(node.target, nodes.Name):
            aliases.add(node.target.name)
    loops = [node for node in tree.body if isinstance(node, nodes.For) and is_name(node.iter, aliases)]
    if len(loops) != 1 or any(name.name == "messages" and name.ctx != "load" for name in tree.find_all(nodes.Name)):
        return False
    main = loops[0]
    stored = {name.name for name in main.find_all((nodes.Name, nodes.NSRef)) if getattr(name, "ctx", "") != "load"}
    at = tree.body.index(main)
    before = [node for node in tree.body[:at] if not (
        isinstance(node, nodes.Assign) and is_name(node.node, aliases))]
    behind = tree.body[at + 1:]
    return (main.test is None and not main.else_ and not main.recursive
            and not any(looks_ahead(node, aliases, False) for node in before)
            and not any(looks_ahead(node, aliases, True) for node in main.body)
            and not any(is_name(name, aliases | stored | {"loop"}) for node in behind for name in names(node)))


def is_name(node, which):
    from jinja2 import nodes
    return isinstance(node, nodes.Name) and node.name in which


def names(node):
    from jinja2 import nodes
    return [*node.find_all(nodes.Name), *([node] if isinstance(node, nodes.Name) else [])]


def looks_ahead(node, aliases, in_loop):
    """Does it use messages other than the first and the loop's own, or what the loop knows of later ones?"""
    from jinja2 import nodes
    if isinstance(node, nodes.Getitem) and is_name(node.node, aliases):
        return not (isinstance(node.arg, nodes.Const) and node.arg.value == 0)
    if isinstance(node, nodes.Getattr) and in_loop and is_name(node.node, {"loop"}):
        return node.attr not in SEEN
    if is_name(node, aliases) or in_loop and is_name(node, {"loop"}):
        return True
    if isinstance(node, nodes.For):         # `loop` is its own in it
        return looks_ahead(node.iter, aliases, in_loop) or any(
            looks_ahead(part, aliases, False) for part in node.iter_child_nodes(exclude=("iter",)))
    return any(looks_ahead(part, aliases, in_loop) for part in node.iter_child_nodes())
