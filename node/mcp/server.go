package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// fallbackVersion of the protocol answers a client that asks for one that the SDK
// does not know, as the original of OpenComms does.
const fallbackVersion = "2024-11-05"

// Config is what a server serves.
type Config struct {
	Name         string // what the server calls itself
	Instructions string // for the agent
	Tools        []Tool // never changes; their names are unique
	Version      string // of this program
	In           io.Reader
	Out          io.Writer
	Log          *slog.Logger // nil drops what is logged
}

// Run serves one client until In ends or ctx does; neither is an error. It closes
// In, if that can be closed. A read of In that closing does not interrupt is left
// behind: In is the process's own input then. When Run returns, no call is under way.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	inner, stop := context.WithCancel(ctx)
	r := &runner{log: cfg.Log, ctx: inner, order: newOrder()}
	defer stop()
	s := sdk.NewServer(&sdk.Implementation{Name: cfg.Name, Version: cfg.Version}, &sdk.ServerOptions{
		Instructions: cfg.Instructions,
		// The list of tools never changes.
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}},
	})
	s.AddReceivingMiddleware(amend)
	for _, t := range cfg.Tools {
		s.AddTool(t.definition(), r.handler(t))
	}
	t := &transport{in: cfg.In, out: cfg.Out, admit: admit, order: r.order}
	defer t.work.Wait()
	err := s.Run(ctx, t)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// methods are those of a server of tools. The SDK would also answer for prompts and
// resources, of which there are none.
var methods = []string{
	"initialize", "ping", "tools/list", methodCall, "server/discover", "notifications/initialized", methodCancelled,
}

// admit refuses what the SDK would answer with another code.
func admit(req *jsonrpc.Request) *refusal {
	if !slices.Contains(methods, req.Method) {
		return &refusal{code: jsonrpc.CodeMethodNotFound, message: "Method not found"}
	}
	if req.Params == nil && (req.Method == "initialize" || req.Method == methodCall) {
		return &refusal{code: jsonrpc.CodeInvalidParams, message: "Invalid params: params are missing"}
	}
	var call struct {
		Name json.RawMessage `json:"name"`
	}
	var name string
	if req.Method == methodCall && (json.Unmarshal(req.Params, &call) != nil || !decode(call.Name, &name)) {
		return &refusal{code: jsonrpc.CodeInvalidParams, message: "Invalid params: name must be a string"}
	}
	return nil
}

// amend brings the SDK's answers to the form of the original.
func amend(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if p, ok := req.GetParams().(*sdk.InitializeParams); ok && !slices.Contains(sdk.SupportedProtocolVersions(), p.ProtocolVersion) {
			p.ProtocolVersion = fallbackVersion
		}
		result, err := next(ctx, method, req)
		if r, ok := result.(*sdk.CallToolResult); ok && err == nil {
			return &callResult{r}, nil
		}
		return result, err
	}
}

// callResult is a result that says isError also when it is false, where the SDK
// leaves it out.
type callResult struct{ *sdk.CallToolResult }

// MarshalJSON implements json.Marshaler.
func (r *callResult) MarshalJSON() ([]byte, error) {
	data, err := json.Marshal(r.CallToolResult)
	if err != nil || r.IsError {
		return data, err
	}
	return append(data[:len(data)-1], `,"isError":false}`...), nil
}

// runner makes the calls of one server.
type runner struct {
	log   *slog.Logger
	order *order
	ctx   context.Context // of the server
}

// internal is the answer to a call that could not be handled. Why is for the log
// only.
func (r *runner) internal(tool string, err error) error {
	if !errors.Is(err, context.Canceled) {
		r.log.Error("an MCP call failed", "tool", tool, "error", err)
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Internal error"}
}

// handler is what the SDK calls for a tool.
func (r *runner) handler(t Tool) sdk.ToolHandler {
	return func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		// The SDK's context ends with the client's cancellation, not with the server's.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(r.ctx, cancel)()

		args, err := t.read(req.Params.Arguments)
		if err != nil {
			return nil, err
		}
		if err := r.order.wait(ctx, req.Extra); err != nil {
			return nil, r.internal(t.Name, err)
		}
		res, err := t.Call(ctx, args)
		if err != nil {
			return nil, r.internal(t.Name, err)
		}
		r.order.onTaken(req.Extra, res.Taken)
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: res.Text}}, IsError: res.IsError}, nil
	}
}
