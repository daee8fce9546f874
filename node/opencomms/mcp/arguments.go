package mcp

import (
	"encoding/json"
	"math"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"opencode-mesh/node/opencomms/engine"
)

// Types of an argument, as its schema calls them.
const (
	text   = "string"
	number = "number"
	flag   = "boolean"
)

// argument is one argument of a tool. One of another type than its own counts as
// the empty text if it is required, where the rules refuse it, and as not given
// otherwise (§6) – but not where that would send to others than was meant, or
// lift a bound: a strict one is refused.
type argument struct {
	name     string
	kind     string
	required bool
	strict   bool
	about    string
	enum     []string // for the schema only: the rules say what is accepted
}

// definition is the tool as tools/list shows it.
func (t *tool) definition() *sdk.Tool {
	type property struct {
		Type        string   `json:"type"`
		Description string   `json:"description"`
		Enum        []string `json:"enum,omitempty"`
	}
	schema := struct {
		Type       string              `json:"type"`
		Properties map[string]property `json:"properties"`
		Required   []string            `json:"required,omitempty"`
	}{Type: "object", Properties: map[string]property{}}
	for _, a := range t.args {
		schema.Properties[a.name] = property{a.kind, a.about, a.enum}
		if a.required {
			schema.Required = append(schema.Required, a.name)
		}
	}
	return &sdk.Tool{
		Name: t.name, Description: t.about, InputSchema: schema,
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: t.reads},
	}
}

// arguments are those of one call, of the types that the tool asks for.
type arguments struct {
	texts   map[string]string
	numbers map[string]float64
	flags   map[string]bool
	wrong   string // the first strict argument of another type
}

// read takes the arguments of a call. A required one that is missing is the
// client's mistake and ends the call.
func (t *tool) read(raw json.RawMessage) (arguments, error) {
	a := arguments{texts: map[string]string{}, numbers: map[string]float64{}, flags: map[string]bool{}}
	var given map[string]json.RawMessage
	if !isNull(raw) && json.Unmarshal(raw, &given) != nil {
		return a, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Invalid params: arguments must be an object"}
	}
	for _, arg := range t.args {
		v, ok := given[arg.name]
		if !ok && arg.required {
			return a, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Invalid params: missing required argument: " + arg.name}
		}
		if !isNull(v) && !a.take(arg, v) && arg.strict && a.wrong == "" {
			a.wrong = arg.name + " must be a " + arg.kind
		}
	}
	return a, nil
}

// take notes a value, if it is of the argument's type.
func (a *arguments) take(arg argument, v json.RawMessage) bool {
	switch arg.kind {
	case text:
		return put(a.texts, arg.name, v)
	case number:
		return put(a.numbers, arg.name, v)
	default:
		return put(a.flags, arg.name, v)
	}
}

func put[T any](into map[string]T, name string, raw json.RawMessage) bool {
	var v T
	if !decode(raw, &v) {
		return false
	}
	into[name] = v
	return true
}

// check refuses a strict argument of another type.
func (a *arguments) check() error {
	if a.wrong == "" {
		return nil
	}
	return &engine.Refusal{Code: codeInvalidArgument, Message: a.wrong}
}

// whole is a number without its fraction, at least 1 as the rules take zero for
// the default; 0 when it was not given.
func (a *arguments) whole(name string) int64 {
	n, ok := a.numbers[name]
	if !ok {
		return 0
	}
	return int64(min(max(math.Trunc(n), 1), maxSafeInteger))
}

// count is whole for what the rules bound far below the largest int.
func (a *arguments) count(name string) int { return int(min(a.whole(name), math.MaxInt32)) }
