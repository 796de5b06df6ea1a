#!/usr/bin/env python3
"""The contract by itself, and against the code: its form, its examples, the table of routes in
service/routes.c and the table of problems in service/problem.c.

    test_openapi.py ROOT [unittest's arguments]

Needs PyYAML; with jsonschema it also checks schemas and examples.
"""
import pathlib
import re
import sys
import unittest

try:
    import yaml
except ImportError:
    print("skipped: there is no PyYAML (python3-yaml)")
    sys.exit(77)
try:
    from jsonschema import Draft202012Validator as Validator
except ImportError:
    Validator = None

ROOT = pathlib.Path(sys.argv[1]).resolve()
METHODS = ("get", "head", "post", "put", "delete", "patch", "options", "trace")


class Strict(yaml.SafeLoader):
    """YAML's own rule, which PyYAML forgets: no key twice in a mapping."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {str(key) for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.YAMLError(f"{node.start_mark}: twice: {', '.join(sorted(twice))}")
        return super().construct_mapping(node, deep)


def walk(node, where="#"):
    """All mappings, each with its place."""
    if isinstance(node, dict):
        yield where, node
        for key, value in node.items():
            yield from walk(value, f"{where}/{str(key).replace('~', '~0').replace('/', '~1')}")
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from walk(value, f"{where}/{i}")


class Contract(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = yaml.load((ROOT / "openapi/openapi.yaml").read_text(), Strict)

    def at(self, ref):
        node = self.root
        self.assertTrue(ref.startswith("#/"), ref)
        for key in ref[2:].split("/"):
            key = key.replace("~1", "/").replace("~0", "~")
            self.assertIn(key, node, f"{ref} leads nowhere")
            node = node[key]
        return node

    def resolved(self, node):
        while isinstance(node, dict) and "$ref" in node:
            node = self.at(node["$ref"])
        return node

    def operations(self):
        for path, item in self.root["paths"].items():
            for method in METHODS:
                if method in item:
                    yield f"{method} {path}", path, method, item, item[method]

    def parameters(self, item, operation):
        return [self.resolved(p) for p in item.get("parameters", []) +
                operation.get("parameters", [])]

    # ---- its form ----

    def test_head(self):
        self.assertEqual(self.root["openapi"].split(".")[:2], ["3", "1"])
        version = re.search(r"^project\(\S+ VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(),
                            re.M)[1]
        self.assertEqual(self.root["info"]["version"], version)

    def test_references(self):
        used = set()
        for where, node in walk(self.root):
            if "$ref" in node:
                self.assertIsInstance(self.at(node["$ref"]), dict, where)
                used.add(node["$ref"])
        for kind, components in self.root["components"].items():
            for name in components:
                self.assertIn(f"#/components/{kind}/{name}", used, "nobody refers to it")

    def test_operations(self):
        ids, tags = set(), {tag["name"] for tag in self.root["tags"]}
        for name, path, method, item, operation in self.operations():
            with self.subTest(name):
                self.assertNotIn(operation["operationId"], ids)
                ids.add(operation["operationId"])
                self.assertTrue(operation["summary"] and operation["description"])
                self.assertTrue(operation["tags"] and set(operation["tags"]) <= tags)
                declared = self.parameters(item, operation)
                names = [(p["in"], p["name"]) for p in declared]
                self.assertEqual(len(names), len(set(names)), names)
                self.assertEqual({p["name"] for p in declared if p["in"] == "path"},
                                 set(re.findall(r"{(\w+)}", path)))
                for parameter in declared:
                    self.assertTrue(parameter["description"] and parameter["schema"], parameter)
                    self.assertEqual(parameter["required"], parameter["in"] == "path")
                if method == "post":
                    self.assertTrue(operation["requestBody"]["required"])
        for where, node in walk(self.root):
            for link in node.get("links", {}).values() if "content" in node else ():
                self.assertIn(link["operationId"], ids, where)

    def test_responses(self):
        for name, _, method, _, operation in self.operations():
            self.assertTrue(any(code.startswith("2") for code in operation["responses"]), name)
            for code, response in operation["responses"].items():
                with self.subTest(f"{name} {code}"):
                    self.assertRegex(code, r"^[2-5]\d\d$")
                    response = self.resolved(response)
                    self.assertTrue(response["description"].strip())
                    for header in response.get("headers", {}).values():
                        header = self.resolved(header)
                        self.assertTrue(header["description"] and header["schema"])
                    content = response.get("content", {})
                    if method == "head" or code == "304":
                        self.assertEqual(content, {})
                    elif code.startswith("2"):
                        self.assertTrue(content)
                    else:
                        self.assertEqual(content, {"application/problem+json": {
                            "schema": {"$ref": "#/components/schemas/Problem"}}})
                    if code in ("202", "429", "503") and method != "head":
                        self.assertIn("Retry-After", response["headers"])

    # ---- against the code ----

    def test_routes(self):
        table = set(re.findall(r'{"(/[^"]*)", "([A-Z]+)", ACCEPTS_',
                               (ROOT / "service/routes.c").read_text()))
        self.assertGreaterEqual(len(table), 8)
        described = {(re.sub(r"{\w+}", "*", path), method.upper())
                     for _, path, method, _, _ in self.operations()}
        heads = {(path, "GET") for path, method in described if method == "HEAD"}
        self.assertLessEqual(heads, table)  # HEAD is served wherever GET is
        self.assertEqual({d for d in described if d[1] != "HEAD"}, table)

    def test_problems(self):
        rows = re.findall(r'\[PROBLEM_(\w+)\] = {(\d+), "(\w+)"',
                          (ROOT / "service/problem.c").read_text())
        codes = [code for name, _, code in rows if name != "NONE"]
        self.assertGreaterEqual(len(codes), 30)
        listed = self.root["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]
        self.assertEqual(sorted(listed), sorted(codes))
        told = {}  # what is said of a status, anywhere
        for _, _, _, _, operation in self.operations():
            for status, response in operation["responses"].items():
                told[status] = told.get(status, "") + self.resolved(response)["description"]
        for name, status, code in rows:
            if name != "NONE":
                self.assertIn(f"`{code}`", told.get(status, self.root["info"]["description"]) +
                              self.root["info"]["description"], "no response speaks of it")

    def test_settings_named_here_exist(self):
        flags = set(re.findall(r"--[a-z][a-z-]*", (ROOT / "openapi/openapi.yaml").read_text()))
        table = (ROOT / "service/settings.c").read_text()
        for flag in flags:
            self.assertIn(f'{{"{flag[2:]}"', table)

    # ---- schemas and examples ----

    def validator(self, schema):
        """References begin at the root, so the components travel along."""
        return Validator({**schema, "components": self.root["components"]})

    @unittest.skipIf(Validator is None, "there is no jsonschema (python3-jsonschema)")
    def test_schemas(self):
        n = 0
        for where, node in walk(self.root):
            if "schema" in node:
                Validator.check_schema(self.resolved(node["schema"]))
                n += 1
        for schema in self.root["components"]["schemas"].values():
            Validator.check_schema(schema)
        self.assertGreater(n, 30)

    @unittest.skipIf(Validator is None, "there is no jsonschema (python3-jsonschema)")
    def test_examples(self):
        n = 0
        for where, node in walk(self.root):
            if "schema" not in node:
                continue
            examples = [e["value"] for e in node.get("examples", {}).values()]
            if "example" in node:
                examples.append(node["example"])
            for example in examples:
                with self.subTest(where):
                    self.validator(node["schema"]).validate(example)
                n += 1
        self.assertGreaterEqual(n, 10)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
