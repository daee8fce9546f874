package auth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"opencode-mesh/protocol/api"
)

// The paths of Enroll.
const (
	EnrollJoin  = "join"  // for a node
	EnrollLogin = "login" // for a controller or operator
)

const (
	// maxIssued is the largest answer that Enroll reads, in bytes.
	maxIssued = 64 << 10
	// maxRetryAfter is the longest Retry-After that is believed.
	maxRetryAfter = time.Hour
	// PatientFor is how long Enroll waits in all for a hub that is busy with logins.
	PatientFor = 5 * time.Second
	// minWithheld is the length in bytes from which a password that a refusal
	// repeats is taken for a repetition; shorter ones occur in ordinary words.
	minWithheld = 6
)

// Enroll exchanges the hub's password for a credential at path EnrollJoin or
// EnrollLogin. hc must be link.HTTPClient, or nothing verifies the hub.
//
// A refusal is an *api.Error, with RetryAfter if the hub said when to come back. A
// hub that has many logins at once says so with a short one: Enroll comes back by
// itself while that is at most PatientFor and all waits together stay within it.
// A wrong password is never sent twice. Other errors wrap their cause, such as ErrPinMismatch. No
// error holds the password or the credential.
func Enroll(ctx context.Context, hc *http.Client, link Link, path string, req api.Login) (api.Issued, error) {
	var none api.Issued
	if path != EnrollJoin && path != EnrollLogin {
		return none, fmt.Errorf("enroll: no such path: %q", path)
	}
	if !api.ValidName(req.Name) {
		return none, api.Errorf(api.CodeBadRequest, "the name must be %s", api.NameRule)
	}
	if req.Password == "" {
		return none, ErrEmptyPassword
	}
	if !utf8.ValidString(req.Password) {
		// JSON would replace such bytes, and another password would be checked.
		return none, api.Errorf(api.CodeBadRequest, "the password is not valid UTF-8 text")
	}
	body, err := json.Marshal(req)
	if err != nil {
		return none, fmt.Errorf("%s: %w", path, err)
	}
	for left := PatientFor; ; {
		is, err := enrollOnce(ctx, hc, link, path, body, req.Password)
		var refused *api.Error
		if !errors.As(err, &refused) || refused.Code != api.CodeRateLimited || refused.RetryAfter <= 0 || refused.RetryAfter > left {
			return is, err
		}
		left -= refused.RetryAfter
		t := time.NewTimer(refused.RetryAfter)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return none, err
		}
	}
}

// enrollOnce makes one try.
func enrollOnce(ctx context.Context, hc *http.Client, link Link, path string, body []byte, password string) (api.Issued, error) {
	var none api.Issued
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, link.BaseURL()+"/v1/"+path, bytes.NewReader(body))
	if err != nil {
		return none, fmt.Errorf("%s: %w", path, err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := hc.Do(r)
	if err != nil {
		return none, fmt.Errorf("%s: %w", path, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxIssued+1))
	if err != nil {
		return none, fmt.Errorf("%s: the hub's answer broke off: %w", path, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return none, refusal(resp, answer, password)
	}
	is, err := readIssued(answer)
	if err != nil {
		return none, fmt.Errorf("%s: what answers at %s is not a hub of the mesh: %w", path, link.BaseURL(), err)
	}
	return is, nil
}

func readIssued(answer []byte) (is api.Issued, err error) {
	if len(answer) > maxIssued {
		return is, fmt.Errorf("the answer is larger than %d bytes", maxIssued)
	}
	if json.Unmarshal(answer, &is) != nil { // its words may quote the answer
		return api.Issued{}, errors.New("the answer is not of the expected form")
	}
	if _, ok := HashSecret(is.Credential); !ok || is.IdentityID == "" || is.HubID == "" || !api.ValidName(is.Name) || !is.Role.Valid() {
		return api.Issued{}, errors.New("the answer holds no credential")
	}
	return is, nil
}

// refusal makes an error of an answer that is not 2xx.
func refusal(resp *http.Response, answer []byte, password string) error {
	e := api.DecodeError(resp.StatusCode, answer)
	if bytes.Contains(answer, []byte("HTTP request to an HTTPS server")) {
		e.Code, e.Message = api.CodeBadRequest, "the hub speaks TLS and the link says mesh+plain://; use the link that meshhub link prints"
	}
	if len(password) >= minWithheld && strings.Contains(e.Message, password) {
		e.Message = "the hub refused; its words are withheld because they repeat the password"
	}
	e.RetryAfter = ParseRetryAfter(resp.Header.Get("Retry-After"), time.Now())
	return e
}

// ParseRetryAfter reads the header of that name, seconds or a date, as a wait from
// now on: at least 0 (also for what cannot be read), at most one hour.
func ParseRetryAfter(header string, now time.Time) time.Duration {
	var wait time.Duration
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil {
		wait = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(header); err == nil {
		wait = at.Sub(now)
	}
	return min(max(wait, 0), maxRetryAfter)
}
