package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Code is a machine-readable error code. The set is closed: codes.go lists it
// with the HTTP status of each, and docs/errors.md explains what to do.
type Code string

// The codes.
const (
	CodeBadRequest         Code = "bad_request"
	CodeMalformedEnvelope  Code = "malformed_envelope"
	CodeUnsupportedVersion Code = "unsupported_version"
	CodeUnauthorized       Code = "unauthorized"
	CodeRevoked            Code = "revoked"
	CodeForbidden          Code = "forbidden"
	CodeFromMismatch       Code = "from_mismatch"
	CodeRefused            Code = "refused"
	CodeHopLimit           Code = "hop_limit"
	CodeNotFound           Code = "not_found"
	CodeUnknownTarget      Code = "unknown_target"
	CodeUnknownTask        Code = "unknown_task"
	CodeMethodNotAllowed   Code = "method_not_allowed"
	CodeConflict           Code = "conflict"
	CodeTaskConflict       Code = "task_conflict"
	CodeNameTaken          Code = "name_taken"
	CodeAlreadySettled     Code = "already_settled"
	CodeNotSettled         Code = "not_settled"
	CodeAlreadyAnswered    Code = "already_answered"
	CodeQuestionGone       Code = "question_gone"
	CodeResultConflict     Code = "result_conflict"
	CodeJournalForked      Code = "journal_forked"
	CodeJournalMismatch    Code = "journal_mismatch"
	CodeSuperseded         Code = "superseded"
	CodeTooOld             Code = "too_old"
	CodeTaskForgotten      Code = "task_forgotten"
	CodeTooLarge           Code = "too_large"
	CodeRateLimited        Code = "rate_limited"
	CodeQueueFull          Code = "queue_full"
	CodeInternal           Code = "internal"
	CodeNotSupported       Code = "not_supported"
	CodeUnavailable        Code = "unavailable"
	CodeReadOnly           Code = "read_only"
	CodeShuttingDown       Code = "shutting_down"
	CodeNodeOffline        Code = "node_offline"
	CodeServiceDown        Code = "service_down"
	CodeTimeout            Code = "timeout"
	CodeDiskFull           Code = "disk_full"
	CodeNodeFull           Code = "node_full"
)

// statuses maps every code to its one HTTP status.
var statuses = map[Code]int{
	CodeBadRequest:         http.StatusBadRequest,
	CodeMalformedEnvelope:  http.StatusBadRequest,
	CodeUnsupportedVersion: http.StatusBadRequest,
	CodeUnauthorized:       http.StatusUnauthorized,
	CodeRevoked:            http.StatusUnauthorized,
	CodeForbidden:          http.StatusForbidden,
	CodeFromMismatch:       http.StatusForbidden,
	CodeRefused:            http.StatusForbidden,
	CodeHopLimit:           http.StatusForbidden,
	CodeNotFound:           http.StatusNotFound,
	CodeUnknownTarget:      http.StatusNotFound,
	CodeUnknownTask:        http.StatusNotFound,
	CodeMethodNotAllowed:   http.StatusMethodNotAllowed,
	CodeConflict:           http.StatusConflict,
	CodeTaskConflict:       http.StatusConflict,
	CodeNameTaken:          http.StatusConflict,
	CodeAlreadySettled:     http.StatusConflict,
	CodeNotSettled:         http.StatusConflict,
	CodeAlreadyAnswered:    http.StatusConflict,
	CodeQuestionGone:       http.StatusConflict,
	CodeResultConflict:     http.StatusConflict,
	CodeJournalForked:      http.StatusConflict,
	CodeJournalMismatch:    http.StatusConflict,
	CodeSuperseded:         http.StatusConflict,
	CodeTooOld:             http.StatusGone,
	CodeTaskForgotten:      http.StatusGone,
	CodeTooLarge:           http.StatusRequestEntityTooLarge,
	CodeRateLimited:        http.StatusTooManyRequests,
	CodeQueueFull:          http.StatusTooManyRequests,
	CodeInternal:           http.StatusInternalServerError,
	CodeNotSupported:       http.StatusNotImplemented,
	CodeUnavailable:        http.StatusServiceUnavailable,
	CodeReadOnly:           http.StatusServiceUnavailable,
	CodeShuttingDown:       http.StatusServiceUnavailable,
	CodeNodeOffline:        http.StatusBadGateway,
	CodeServiceDown:        http.StatusBadGateway,
	CodeTimeout:            http.StatusGatewayTimeout,
	CodeDiskFull:           http.StatusInsufficientStorage,
	CodeNodeFull:           http.StatusInsufficientStorage,
}

// Codes returns every code with its HTTP status, for documentation and tests.
func Codes() map[Code]int {
	m := make(map[Code]int, len(statuses))
	for c, s := range statuses {
		m[c] = s
	}
	return m
}

// Status is the HTTP status that goes with c; 500 for a code not of the set.
func (c Code) Status() int {
	if s, ok := statuses[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// Error is the one error shape of every interface:
// {"error":{"code":"…","message":"…"}}. Message is meant for people: it says
// what to do and holds no secret and no internal text.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Line is the line of a text that could not be read, counted from 1.
	Line int `json:"line,omitempty"`
	// RetryAfter travels as the HTTP header of that name, in whole seconds.
	RetryAfter time.Duration `json:"-"`
}

// Errorf makes an Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Error implements error.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Is matches any Error of the same code, so that errors.Is(err, &Error{Code: c})
// works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && (t.Message == "" || t.Message == e.Message)
}

// ErrorCode returns the code of err, "" for nil and CodeInternal for an error
// that is not ours.
func ErrorCode(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}

// ErrorBody is an Error as it travels.
type ErrorBody struct {
	Error *Error `json:"error"`
}

// DecodeError reads the body of an answer that is not 2xx. A body that is not
// of our shape (a proxy's page, say) gives an Error made from the status.
func DecodeError(status int, body []byte) *Error {
	var b ErrorBody
	if err := json.Unmarshal(body, &b); err == nil && b.Error != nil && b.Error.Code != "" {
		return b.Error
	}
	code := CodeInternal
	switch status {
	case http.StatusUnauthorized:
		code = CodeUnauthorized
	case http.StatusForbidden:
		code = CodeForbidden
	case http.StatusNotFound:
		code = CodeNotFound
	case http.StatusRequestEntityTooLarge:
		code = CodeTooLarge
	case http.StatusTooManyRequests:
		code = CodeRateLimited
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		code = CodeUnavailable
	}
	return Errorf(code, "the answer was %d %s and not of the mesh", status, http.StatusText(status))
}
