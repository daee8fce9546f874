package mcp

import (
	"context"
	"encoding/json"
	"math"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Tool is one of a server's tools.
type Tool struct {
	Name  string
	About string // for the agent
	Args  []Argument
	Reads bool // changes nothing
	// Call does it. An error is logged and answered as an internal error, without its
	// text; what the agent is to know is a Result. ctx ends with the server and when the
	// client gives the call up.
	Call func(ctx context.Context, a Arguments) (Result, error)
}

// Result is the answer of a tool.
type Result struct {
	Text    string
	IsError bool // the tool did not do it
	// Taken is called once the answer was written to the client, which it is not if the
	// client gave the call up or is gone; nil: nothing is to be done then. The next call
	// waits for its end, and so does Run.
	Taken func()
}

// Kind is the type of an argument, as its schema calls it.
type Kind string

// Types of arguments.
const (
	Text   Kind = "string"
	Number Kind = "number"
	Flag   Kind = "boolean"
)

// Argument is one argument of a tool. One of another type than its own counts as not
// given, and sets Arguments.Wrong if it is a strict one. A required one that is missing
// ends the call before the tool sees it.
type Argument struct {
	Name     string
	Kind     Kind
	Required bool
	Strict   bool
	About    string
	Enum     []string // for the schema only: the tool says what is accepted
}

// Arguments are those of one call, by name, of the types that the tool asks for. One that
// was not given is in no map.
type Arguments struct {
	Texts   map[string]string
	Numbers map[string]float64
	Flags   map[string]bool
	Wrong   string // what is wrong with the first strict argument of another type
}

// Whole is a number without its fraction, at least 1 as the tools take zero for the
// default; 0 when it was not given.
func (a Arguments) Whole(name string) int64 {
	n, ok := a.Numbers[name]
	if !ok {
		return 0
	}
	return int64(min(max(math.Trunc(n), 1), maxSafeInteger))
}

// Count is Whole for what is bounded far below the largest int.
func (a Arguments) Count(name string) int { return int(min(a.Whole(name), math.MaxInt32)) }

// definition is the tool as tools/list shows it.
func (t Tool) definition() *sdk.Tool {
	type property struct {
		Type        Kind     `json:"type"`
		Description string   `json:"description"`
		Enum        []string `json:"enum,omitempty"`
	}
	schema := struct {
		Type       string              `json:"type"`
		Properties map[string]property `json:"properties"`
		Required   []string            `json:"required,omitempty"`
	}{Type: "object", Properties: map[string]property{}}
	for _, a := range t.Args {
		schema.Properties[a.Name] = property{a.Kind, a.About, a.Enum}
		if a.Required {
			schema.Required = append(schema.Required, a.Name)
		}
	}
	return &sdk.Tool{
		Name: t.Name, Description: t.About, InputSchema: schema,
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: t.Reads},
	}
}

// read takes the arguments of a call. A required one that is missing is the
// client's mistake and ends the call.
func (t Tool) read(raw json.RawMessage) (Arguments, error) {
	a := Arguments{Texts: map[string]string{}, Numbers: map[string]float64{}, Flags: map[string]bool{}}
	var given map[string]json.RawMessage
	if !isNull(raw) && json.Unmarshal(raw, &given) != nil {
		return a, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Invalid params: arguments must be an object"}
	}
	for _, arg := range t.Args {
		v, ok := given[arg.Name]
		if !ok && arg.Required {
			return a, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Invalid params: missing required argument: " + arg.Name}
		}
		if !isNull(v) && !a.take(arg, v) && arg.Strict && a.Wrong == "" {
			a.Wrong = arg.Name + " must be a " + string(arg.Kind)
		}
	}
	return a, nil
}

// take notes a value, if it is of the argument's type.
func (a *Arguments) take(arg Argument, v json.RawMessage) bool {
	switch arg.Kind {
	case Text:
		return put(a.Texts, arg.Name, v)
	case Number:
		return put(a.Numbers, arg.Name, v)
	default:
		return put(a.Flags, arg.Name, v)
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
