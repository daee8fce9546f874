package federation

import "opencode-mesh/protocol/api"

// check refuses a query that makes no sense, and fills in its budget.
func check(q *api.ContextQuery) error {
	if len(q.Nodes) > api.MaxContextNodes {
		return api.Errorf(api.CodeBadRequest, "a query asks at most %d nodes", api.MaxContextNodes)
	}
	return api.CheckContextQuery(&q.Query)
}
