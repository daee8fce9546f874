package tunnel

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"opencode-mesh/protocol/api"
)

const (
	// maxRefusal is how much of a refusal's body is read, in bytes.
	maxRefusal = 8 << 10
	// maxRefusalMessage is how much of its message is kept, in bytes.
	maxRefusalMessage = 500
	// maxRetryAfter is the longest wait that a hub can ask for.
	maxRetryAfter = 10 * time.Minute
)

// RefusedError is what Dial gives when the hub, or something before it, answered
// the upgrade with anything but a tunnel.
type RefusedError struct {
	Status int // HTTP status
	// Code and Message are from the hub's error body; "" when the answer was not
	// of the mesh. Message is for people; it is one line of printable text.
	Code, Message string
	// RetryAfter is how long the hub asks to stay away, at most 10 minutes; 0 when
	// it does not say.
	RetryAfter time.Duration
}

// Error implements error.
func (e *RefusedError) Error() string {
	msg := fmt.Sprintf("the hub refused the tunnel: %d %s", e.Status, http.StatusText(e.Status))
	if e.Code != "" {
		msg += " (" + e.Code + ")"
	}
	if e.Message != "" {
		msg += ": " + e.Message
	}
	return msg
}

// refusal makes a RefusedError of an answer that is not 101.
func refusal(resp *http.Response, now time.Time) *RefusedError {
	e := &RefusedError{Status: resp.StatusCode, RetryAfter: retryAfter(resp.Header.Get("Retry-After"), now)}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // part of a body is as good as none
	var b api.ErrorBody
	if err := json.Unmarshal(body, &b); err == nil && b.Error != nil {
		e.Code, e.Message = printable(string(b.Error.Code)), printable(b.Error.Message)
	}
	return e
}

// printable makes one bounded line of what a stranger wrote.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, s)
	if len(s) > maxRefusalMessage {
		s = strings.ToValidUTF8(s[:maxRefusalMessage], "") + "…"
	}
	return s
}

// retryAfter reads the header of that name: seconds, or a date.
func retryAfter(v string, now time.Time) time.Duration {
	if v == "" {
		return 0
	}
	var d time.Duration
	if n, err := strconv.Atoi(v); err == nil {
		d = time.Duration(min(n, int(maxRetryAfter/time.Second))) * time.Second
	} else if t, err := http.ParseTime(v); err == nil {
		d = t.Sub(now)
	}
	return max(0, min(d, maxRetryAfter))
}
