package forward

import (
	"net"
	"net/http"
	"slices"
	"strings"

	"opencode-mesh/protocol/api"
)

// namesOf are the values of Host by which the port is reached on purpose. A page of
// somebody else's name that resolves to loopback (DNS rebinding) has another one.
func namesOf(addr net.Addr) []string {
	_, port, _ := net.SplitHostPort(addr.String())
	var out []string
	for _, host := range []string{"localhost", "127.0.0.1", "[::1]"} {
		out = append(out, host+":"+port)
		if port == "80" {
			out = append(out, host) // browsers leave it out
		}
	}
	return out
}

// fromHere refuses what a page of another origin makes a browser send; programs that
// are no browsers send neither Origin nor Sec-Fetch-Site.
func fromHere(r *http.Request, names []string) *api.Error {
	host := strings.ToLower(r.Host)
	if !slices.Contains(names, host) {
		return api.Errorf(api.CodeForbidden, "this port answers to %s only", strings.Join(names, ", "))
	}
	foreign := api.Errorf(api.CodeForbidden, "a page of another origin may not use this port")
	if origins := r.Header["Origin"]; len(origins) > 1 || len(origins) == 1 && !strings.EqualFold(origins[0], "http://"+host) {
		return foreign
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return nil
	}
	// Following a link to here is harmless, being shown inside a foreign page is not.
	if r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" {
		return nil
	}
	return foreign
}
