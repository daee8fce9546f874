package docs

import (
	"context"
	"fmt"
	"go/ast"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/goccy/go-yaml"

	"opencode-mesh/hub/access"
	hubapi "opencode-mesh/hub/api"
	"opencode-mesh/hub/events"
	"opencode-mesh/protocol/api"
)

// The two documents.
const (
	hubDoc    = "openapi-hub.yaml"
	tunnelDoc = "openapi-tunnel.yaml"
)

// object is a mapping of a document.
type object = map[string]any

// loaded are the documents that were read.
var loaded = map[string]object{}

// load reads a document.
func load(t *testing.T, name string) object {
	t.Helper()
	if doc := loaded[name]; doc != nil {
		return doc
	}
	var doc object
	if err := yaml.Unmarshal([]byte(read(t, "docs/"+name)), &doc); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	loaded[name] = doc
	if v, _ := doc["openapi"].(string); !strings.HasPrefix(v, "3.1.") {
		t.Fatalf("%s is of version %q", name, v)
	}
	return doc
}

// operation is a documented operation.
type operation struct {
	tags  []string
	codes []string
	id    string
	path  string
	names map[string]bool // of its path parameters
}

// nodePaths is the part of the tunnel's document with what the node serves under a
// method and path that the hub serves too.
const nodePaths = "x-node-paths"

// methods are the keys of a path item that are operations.
var methods = []string{"get", "put", "post", "delete", "patch", "head", "options", "trace"}

// operations lists the operations of a document as "METHOD /path". An item that
// refers to the hub's document brings that one's along, with the tag hub.
func operations(t *testing.T, name string) map[string]operation {
	t.Helper()
	out := map[string]operation{}
	if items, ok := load(t, name)[nodePaths].(object); ok {
		for path, item := range items {
			for key, op := range operationsOf(t, name, path, item.(object)) {
				out[key+" at the node"] = op
			}
		}
	}
	for path, item := range at[object](t, load(t, name), "paths") {
		item := item.(object)
		if ref, ok := item["$ref"].(string); ok {
			elsewhere := pointer(t, ref)
			if !strings.HasPrefix(ref, hubDoc+"#/paths/") || elsewhere != path {
				t.Errorf("%s: %s refers to %s", name, path, ref)
				continue
			}
			hub := operations(t, hubDoc)
			for key, op := range hub {
				if op.path == path {
					op.tags = []string{"hub"}
					out[key] = op
				}
			}
			continue
		}
		maps.Copy(out, operationsOf(t, name, path, item))
	}
	return out
}

// operationsOf lists the operations of one path.
func operationsOf(t *testing.T, name, path string, item object) map[string]operation {
	t.Helper()
	out := map[string]operation{}
	for _, m := range methods {
		if op, ok := item[m].(object); ok {
			out[strings.ToUpper(m)+" "+path] = readOperation(t, name, path, op)
		}
	}
	return out
}

func readOperation(t *testing.T, name, path string, op object) operation {
	t.Helper()
	o := operation{path: path, names: map[string]bool{}}
	o.id, _ = op["operationId"].(string)
	o.tags, o.codes = words(op["tags"]), words(op["x-error-codes"])
	list, _ := op["parameters"].([]any)
	for _, p := range list {
		param := p.(object)
		if ref, ok := param["$ref"].(string); ok {
			param = resolve(t, name, ref)
		}
		if param["in"] == "path" {
			o.names[param["name"].(string)] = true
		}
	}
	if len(o.tags) != 1 {
		t.Errorf("%s: %s has tags %v, one is wanted", name, path, o.tags)
	}
	return o
}

func words(v any) []string {
	list, _ := v.([]any)
	var out []string
	for _, w := range list {
		out = append(out, fmt.Sprint(w))
	}
	return out
}

// at walks into a document.
func at[T any](t *testing.T, doc any, keys ...string) T {
	t.Helper()
	for _, k := range keys {
		m, ok := doc.(object)
		if !ok || m[k] == nil {
			t.Fatalf("there is no %s", strings.Join(keys, "/"))
		}
		doc = m[k]
	}
	v, ok := doc.(T)
	if !ok {
		t.Fatalf("%s is a %T", strings.Join(keys, "/"), doc)
	}
	return v
}

// pointer is the last part of a reference.
func pointer(t *testing.T, ref string) string {
	t.Helper()
	i := strings.LastIndexByte(ref, '/')
	if i < 0 {
		t.Fatalf("%q is not a reference", ref)
	}
	return unescape(t, ref[i+1:])
}

// unescape reads one step of a reference.
func unescape(t *testing.T, step string) string {
	t.Helper()
	text, err := url.PathUnescape(step)
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("~1", "/", "~0", "~").Replace(text)
}

// resolve follows a reference in one of the documents.
func resolve(t *testing.T, name, ref string) object {
	t.Helper()
	file, path, ok := strings.Cut(ref, "#/")
	if !ok {
		t.Fatalf("%s: %q is not a reference", name, ref)
	}
	if file != "" {
		name = file
	}
	keys := strings.Split(path, "/")
	for i := range keys {
		keys[i] = unescape(t, keys[i])
	}
	return at[object](t, load(t, name), keys...)
}

// routesOf walks a chi router.
func routesOf(t *testing.T, h http.Handler) map[string]bool {
	t.Helper()
	routes, ok := h.(chi.Routes)
	if !ok {
		t.Fatalf("%T cannot be walked", h)
	}
	out := map[string]bool{}
	err := chi.Walk(routes, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		out[method+" "+route] = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// server is a hub's handlers, to be looked at and not to be called.
func server(t *testing.T) *hubapi.Server {
	t.Helper()
	s := hubapi.New(hubapi.Config{Access: access.New(access.Config{}), Bus: events.New("g", "b"), Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { s.Close(context.Background()) })
	return s
}

func TestTheHubsDocumentAndItsPublicRoutesAgree(t *testing.T) {
	same(t, "public route", operations(t, hubDoc), routesOf(t, server(t).Public()))
}

func TestTheTunnelsDocumentAndTheHubsInnerRoutesAgree(t *testing.T) {
	same(t, "route of the hub", tagged(t, "hub"), routesOf(t, server(t).Inner()))
}

func TestTheTunnelsDocumentAndTheNodesRoutesAgree(t *testing.T) {
	all := allSources(t)
	real := map[string]bool{}
	for _, at := range [][2]string{{"node", "Handler"}, {"node", "tunnelRoutes"}, {"node/tasks", "Routes"}, {"node/mail", "Routes"}, {"node/opencomms/board", "Routes"}, {"node/peers/board", "Routes"}} {
		list := all[at[0]].funcs[at[1]]
		if list == nil {
			t.Fatalf("%s has no %s, where a node's routes were", at[0], at[1])
		}
		for _, f := range list {
			maps.Copy(real, routesIn(f))
		}
	}
	same(t, "route of the node", tagged(t, "node"), real)
}

// tagged are the operations of the tunnel that one side serves.
func tagged(t *testing.T, side string) map[string]operation {
	t.Helper()
	out := map[string]operation{}
	for key, op := range operations(t, tunnelDoc) {
		switch {
		case !slices.Contains([]string{"hub", "node"}, op.tags[0]):
			t.Errorf("%s has the tag %s", key, op.tags[0])
		case op.tags[0] == side:
			out[strings.TrimSuffix(key, " at the node")] = op
		}
	}
	return out
}

// routesIn finds the routes that a function gives to a chi router.
func routesIn(f *ast.FuncDecl) map[string]bool {
	out := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 2 {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Get", "Put", "Post", "Delete"}, sel.Sel.Name) {
			return true
		}
		if path := firstWord(call.Args[0]); strings.HasPrefix(path, "/") {
			out[strings.ToUpper(sel.Sel.Name)+" "+path] = true
		}
		return true
	})
	return out
}

var pathParameter = regexp.MustCompile(`\{([^}]+)\}`)

func TestOperationsAreComplete(t *testing.T) {
	ids := map[string]string{}
	for _, name := range []string{hubDoc, tunnelDoc} {
		for key, op := range operations(t, name) {
			for _, c := range op.codes {
				if _, ok := api.Codes()[api.Code(c)]; !ok {
					t.Errorf("%s: %s: there is no error code %s", name, key, c)
				}
			}
			for _, m := range pathParameter.FindAllStringSubmatch(op.path, -1) {
				if !op.names[m[1]] {
					t.Errorf("%s: %s does not describe {%s}", name, key, m[1])
				}
			}
			if other, twice := ids[op.id]; op.id == "" || twice && other != key {
				t.Errorf("%s: %s has the operationId %q, and so has %q", name, key, op.id, other)
			}
			ids[op.id] = key
		}
	}
}

func TestDocumentsAreWhole(t *testing.T) {
	for _, name := range []string{hubDoc, tunnelDoc} {
		var walk func(v any)
		walk = func(v any) {
			switch v := v.(type) {
			case object:
				if ref, ok := v["$ref"].(string); ok {
					resolve(t, name, ref) // a reference leads somewhere
				}
				for key, inner := range v {
					if inner == nil { // a comma in a text that is not quoted
						t.Errorf("%s: %q has no value", name, key)
					}
					walk(inner)
				}
			case []any:
				for _, inner := range v {
					walk(inner)
				}
			}
		}
		walk(load(t, name))
	}
}
