package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const (
	// MaxFrame bounds one line from the client, in bytes without its end.
	MaxFrame = 1 << 20
	// maxDepth bounds how deep the values of a frame nest: a call needs five.
	maxDepth = 64
	// maxSafeInteger is the largest id that every JSON reader keeps exact.
	maxSafeInteger = 1<<53 - 1
)

// errTooLong says that a line passed MaxFrame.
var errTooLong = errors.New("the line is longer than 1 MiB")

// lineReader splits a stream into lines. It holds at most one, of MaxFrame bytes.
type lineReader struct {
	r    *bufio.Reader
	skip bool // until the next line's beginning
}

func newLineReader(r io.Reader) *lineReader { return &lineReader{r: bufio.NewReaderSize(r, 64<<10)} }

// next returns a line without its end, errTooLong as soon as a line is too long
// (what is left of it is passed over by the next call), or the stream's error. A
// last line without an end is a line.
func (l *lineReader) next() ([]byte, error) {
	var line []byte
	for {
		part, err := l.r.ReadSlice('\n')
		ended := err == nil
		if l.skip {
			if ended {
				l.skip = false
			} else if !errors.Is(err, bufio.ErrBufferFull) {
				return nil, err
			}
			continue
		}
		if ended {
			part = part[:len(part)-1]
		}
		line = append(line, part...)
		// A line of exactly MaxFrame may still be followed by the \r of its end.
		if text := bytes.TrimSuffix(line, []byte("\r")); len(text) > MaxFrame {
			l.skip = !ended
			return nil, errTooLong
		} else if ended {
			return text, nil
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case len(line) > 0 && errors.Is(err, io.EOF):
			return line, nil
		default:
			return nil, err
		}
	}
}

// refusal answers a frame that never reaches the server.
type refusal struct {
	id      json.RawMessage // nil is null
	code    int64
	message string
}

func (r *refusal) encode() []byte {
	type wireError struct {
		Code    int64  `json:"code"`
		Message string `json:"message"`
	}
	data, err := json.Marshal(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   wireError       `json:"error"`
	}{"2.0", r.id, wireError{r.code, r.message}})
	if err != nil {
		// The id was read as JSON and the rest is ours.
		panic(err)
	}
	return data
}

// parse reads a frame. It returns a request, or how to refuse the frame, or neither
// when there is nothing to do: a blank line, or an answer, as we ask nothing.
func parse(line []byte) (*jsonrpc.Request, *refusal) {
	line = bytes.Trim(line, " \t\r")
	switch {
	case len(line) == 0:
		return nil, nil
	case !utf8.Valid(line) || !json.Valid(line):
		return nil, &refusal{code: jsonrpc.CodeParseError, message: "Parse error"}
	case line[0] == '[':
		return nil, &refusal{code: jsonrpc.CodeInvalidRequest, message: "Invalid Request: batches are not supported"}
	case line[0] != '{':
		return nil, &refusal{code: jsonrpc.CodeInvalidRequest, message: "Invalid Request: a request is an object"}
	case depth(line) > maxDepth:
		return nil, &refusal{code: jsonrpc.CodeInvalidRequest, message: "Invalid Request: nested too deep"}
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(line, &members); err != nil {
		return nil, &refusal{code: jsonrpc.CodeParseError, message: "Parse error"}
	}
	id, ok := requestID(members["id"])
	if !ok {
		return nil, &refusal{code: jsonrpc.CodeInvalidRequest, message: "Invalid Request: id must be a string or an integer"}
	}
	refuse := func(code int64, message string) (*jsonrpc.Request, *refusal) {
		r := &refusal{code: code, message: message}
		if id.IsValid() {
			r.id = members["id"]
		}
		return nil, r
	}
	var version, method string
	if decode(members["jsonrpc"], &version); version != "2.0" {
		return refuse(jsonrpc.CodeInvalidRequest, `Invalid Request: jsonrpc must be "2.0"`)
	}
	raw, isRequest := members["method"]
	if !isRequest && id.IsValid() && (members["result"] != nil || members["error"] != nil) {
		return nil, nil
	}
	if !decode(raw, &method) {
		return refuse(jsonrpc.CodeInvalidRequest, "Invalid Request: method must be a string")
	}
	params := members["params"]
	switch {
	case isNull(params):
		params = nil
	case params[0] != '{' && id.IsValid():
		return refuse(jsonrpc.CodeInvalidParams, "Invalid params: params must be an object")
	case params[0] != '{':
		return nil, nil // a notification is never answered
	}
	return &jsonrpc.Request{ID: id, Method: method, Params: params}, nil
}

// decode reads a value of exactly one type; null is none.
func decode[T any](raw json.RawMessage, into *T) bool {
	return !isNull(raw) && json.Unmarshal(raw, into) == nil
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || bytes.Equal(raw, []byte("null")) }

// requestID reads an id; the zero one is that of a request without. Numbers that
// would come back changed are not ok.
func requestID(raw json.RawMessage) (id jsonrpc.ID, ok bool) {
	if isNull(raw) {
		return id, true
	}
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return id, false
	}
	switch n := v.(type) {
	case string:
	case float64:
		if n != math.Trunc(n) || math.Abs(n) > maxSafeInteger {
			return id, false
		}
	default:
		return id, false
	}
	id, err := jsonrpc.MakeID(v)
	return id, err == nil
}

// depth is how deep valid JSON nests.
func depth(data []byte) int {
	deepest, now, quoted := 0, 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return deepest
}
