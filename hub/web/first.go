package web

import (
	"net/http"
	"net/url"
	"strconv"
)

// auditRows is how many entries a page of the audit log has.
const auditRows = 100

// ofSession is what the page of a session shows first.
func ofSession(r *http.Request) map[string]string {
	controller, target, workspace := r.PathValue("controller"), r.PathValue("target"), r.URL.Query().Get("workspace")
	digests := url.Values{"controller": {controller}, "target": {target}, "workspace": {workspace}}
	return map[string]string{
		"session": "/v1/bindings/" + url.PathEscape(controller) + "/" + url.PathEscape(target) + "?" + url.Values{"workspace": {workspace}}.Encode(),
		"digests": "/v1/digests?" + digests.Encode(),
		"nodes":   "/v1/nodes?" + url.Values{"name": {target}}.Encode(),
	}
}

// ofAudit is the page of the audit log that the address asks for, newest first.
func ofAudit(r *http.Request) map[string]string {
	q := r.URL.Query()
	ask := url.Values{"before": {q.Get("before")}, "limit": {strconv.Itoa(auditRows)}}
	for _, name := range []string{"action", "name"} {
		if v := q.Get(name); v != "" {
			ask.Set(name, v)
		}
	}
	return map[string]string{"audit": "/v1/audit?" + ask.Encode()}
}

// taskPage is how many tasks the list of them asks for at once; limits.js has it too.
const taskPage = "200"

// tasksOf is the newest page of the tasks that the filters of the page's address let
// through.
func tasksOf(r *http.Request) map[string]string {
	q := url.Values{"limit": {taskPage}}
	for _, name := range []string{"q", "state", "target", "controller", "open"} {
		if v := r.URL.Query().Get(name); v != "" {
			q.Set(name, v)
		}
	}
	return map[string]string{"tasks": "/v1/tasks?" + q.Encode()}
}

// taskOf is the task of the page's path.
func taskOf(r *http.Request) map[string]string {
	return map[string]string{"task": "/v1/tasks/" + url.PathEscape(r.PathValue("id"))}
}
