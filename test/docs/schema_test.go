package docs

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node"
	"opencode-mesh/node/link"
	"opencode-mesh/node/mail"
	"opencode-mesh/node/opencomms/push"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

// schemaTypes are the Go types behind the schemas of a document.
var schemaTypes = map[string]map[string]reflect.Type{
	hubDoc: {
		"ErrorBody": reflect.TypeFor[api.ErrorBody](), "Error": reflect.TypeFor[api.Error](), "Code": reflect.TypeFor[api.Code](),
		"State": reflect.TypeFor[api.State](), "Role": reflect.TypeFor[api.Role](),
		"Login": reflect.TypeFor[api.Login](), "Issued": reflect.TypeFor[api.Issued](),
		"Dispatch": reflect.TypeFor[api.Dispatch](), "DispatchTarget": reflect.TypeFor[api.DispatchTarget](),
		"Dispatched": reflect.TypeFor[api.Dispatched](), "TaskPage": reflect.TypeFor[api.TaskPage](),
		"Task": reflect.TypeFor[api.Task](), "Step": reflect.TypeFor[api.Step](), "Question": reflect.TypeFor[api.Question](),
		"Activity": reflect.TypeFor[api.Activity](), "Artifact": reflect.TypeFor[api.Artifact](), "ArtifactList": reflect.TypeFor[api.ArtifactList](),
		"Session": reflect.TypeFor[api.Session](), "SessionList": reflect.TypeFor[api.SessionList](), "FormerSession": reflect.TypeFor[api.FormerSession](),
		"Fill": reflect.TypeFor[api.Fill](), "Operate": reflect.TypeFor[api.Operate](), "Digest": reflect.TypeFor[api.Digest](), "DigestList": reflect.TypeFor[api.DigestList](),
		"Answer": reflect.TypeFor[api.Answer](), "Tokens": reflect.TypeFor[api.Tokens](), "TaskError": reflect.TypeFor[api.TaskError](),
		"NodeList": reflect.TypeFor[api.NodeList](), "Node": reflect.TypeFor[api.Node](), "AgentStatus": reflect.TypeFor[api.AgentStatus](),
		"CredentialList": reflect.TypeFor[api.CredentialList](), "Credential": reflect.TypeFor[api.Credential](),
		"AuditPage": reflect.TypeFor[api.AuditPage](), "AuditEntry": reflect.TypeFor[api.AuditEntry](),
		"ServiceList": reflect.TypeFor[api.ServiceList](), "ServiceInfo": reflect.TypeFor[api.ServiceInfo](), "Handover": reflect.TypeFor[api.Handover](),
		"ChannelList": reflect.TypeFor[api.ChannelList](), "Channel": reflect.TypeFor[api.Channel](), "ChannelMember": reflect.TypeFor[api.ChannelMember](),
		"ChannelProblem": reflect.TypeFor[api.ChannelProblem](), "ChannelMessages": reflect.TypeFor[api.ChannelMessages](), "ChannelMessage": reflect.TypeFor[api.ChannelMessage](),
		"PeerFleet": reflect.TypeFor[api.PeerFleet](), "PeerNode": reflect.TypeFor[api.PeerNode](), "PeerAgent": reflect.TypeFor[api.PeerAgent](),
		"PeerBoard": reflect.TypeFor[api.PeerBoard](), "PeerSeen": reflect.TypeFor[api.PeerSeen](), "PeerMessage": reflect.TypeFor[api.PeerMessage](),
		"ContextQuery": reflect.TypeFor[api.ContextQuery](), "ContextResult": reflect.TypeFor[api.ContextResult](), "ContextLeg": reflect.TypeFor[api.ContextLeg](),
		"ContextProviders": reflect.TypeFor[api.ContextProviders](), "ContextProvider": reflect.TypeFor[api.ContextProvider](), "ContextConsent": reflect.TypeFor[api.ContextConsent](),
		"ContextRecords": reflect.TypeFor[api.ContextRecords](), "ContextRecord": reflect.TypeFor[api.ContextRecord](),
		"Cited": reflect.TypeFor[ocp.Cited](), "Usage": reflect.TypeFor[ocp.Usage](), "Used": reflect.TypeFor[ocp.Used](), "DataFlow": reflect.TypeFor[ocp.DataFlow](),
		"Cut": reflect.TypeFor[api.Cut](), "Resync": reflect.TypeFor[api.Resync](), "Beat": reflect.TypeFor[api.Beat](),
	},
	tunnelDoc: {
		"Service": reflect.TypeFor[api.Service](),
		"Hello":   reflect.TypeFor[api.Hello](), "BoundSession": reflect.TypeFor[api.BoundSession](), "Welcome": reflect.TypeFor[api.Welcome](),
		"Party": reflect.TypeFor[api.Party](), "Offer": reflect.TypeFor[api.Offer](), "Binding": reflect.TypeFor[api.Binding](),
		"Receipt": reflect.TypeFor[api.Receipt](), "Withdraw": reflect.TypeFor[api.Withdraw](),
		"Reconcile": reflect.TypeFor[api.Reconcile](), "Triple": reflect.TypeFor[api.Triple](), "Reconciled": reflect.TypeFor[api.Reconciled](),
		"Progress": reflect.TypeFor[api.Progress](), "Result": reflect.TypeFor[api.Result](), "Recover": reflect.TypeFor[api.Recover](),
		"Outcome": reflect.TypeFor[api.Outcome](), "Asked": reflect.TypeFor[api.Asked](), "NodeReport": reflect.TypeFor[api.NodeReport](),
		"Ask": reflect.TypeFor[api.Ask](), "Reply": reflect.TypeFor[api.Reply](),
		"Status": reflect.TypeFor[node.Status](), "LinkStatus": reflect.TypeFor[link.Status](),
		"Mail": reflect.TypeFor[api.Mail](), "MailReceipt": reflect.TypeFor[api.MailReceipt](), "MailReceipts": reflect.TypeFor[api.MailReceipts](),
		"MailSettled": reflect.TypeFor[api.MailSettled](), "MailQuery": reflect.TypeFor[api.MailQuery](), "MailKnown": reflect.TypeFor[api.MailKnown](),
		"ContextAsk": reflect.TypeFor[api.ContextAsk](), "ContextAnswer": reflect.TypeFor[api.ContextAnswer](), "ContextAnswerLeg": reflect.TypeFor[api.ContextAnswerLeg](),
		"Query": reflect.TypeFor[ocp.Query](), "Found": reflect.TypeFor[ocp.Result](),
		"MemoryPage": reflect.TypeFor[api.MemoryPage](), "MemoryItem": reflect.TypeFor[api.MemoryItem](), "MemoryResult": reflect.TypeFor[api.MemoryResult](), "MemoryDigest": reflect.TypeFor[api.MemoryDigest](),
		"PeerRoster": reflect.TypeFor[api.PeerRoster](),
		"MailBox":    reflect.TypeFor[mail.Snapshot](), "PushedProject": reflect.TypeFor[push.Project](),
		"Snapshot": reflect.TypeFor[tasks.Snapshot](), "TaskInfo": reflect.TypeFor[tasks.TaskInfo](),
	},
}

// enums are the values that the named string types may have.
func enums(t *testing.T) map[string]map[string]bool {
	codes, states := map[string]bool{}, map[string]bool{}
	for c := range api.Codes() {
		codes[string(c)] = true
	}
	c := newChecker()
	for name, v := range c.constants(t, "protocol/api") {
		if strings.HasPrefix(name, "State") {
			states[strings.Trim(v.Val().ExactString(), `"`)] = true
		}
	}
	roles := map[string]bool{string(api.RoleNode): true, string(api.RoleController): true, string(api.RoleOperator): true}
	return map[string]map[string]bool{"Code": codes, "State": states, "Role": roles}
}

func TestSchemasHaveTheFieldsOfTheGoTypes(t *testing.T) {
	for doc, kinds := range schemaTypes {
		schemas := at[object](t, load(t, doc), "components", "schemas")
		same(t, doc+": schema", schemas, kinds)
		for name, typ := range kinds {
			schema, ok := schemas[name].(object)
			if !ok {
				continue // same has said so
			}
			if values, isEnum := enums(t)[name]; isEnum {
				documented := map[string]bool{}
				for _, v := range words(schema["enum"]) {
					documented[v] = true
				}
				same(t, doc+": value of "+name, documented, values)
				continue
			}
			checkObject(t, doc, name, schema, typ)
		}
	}
}

// field is a field as it travels.
type field struct {
	typ      reflect.Type
	optional bool // it may be absent
}

// fieldsOf lists a struct's JSON fields, those of embedded structs among them.
func fieldsOf(typ reflect.Type) map[string]field {
	out := map[string]field{}
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case f.Anonymous && name == "":
			maps.Copy(out, fieldsOf(f.Type))
		case f.IsExported():
			optional := slices.ContainsFunc(strings.Split(options, ","), func(o string) bool { return o == "omitempty" || o == "omitzero" })
			out[name] = field{f.Type, optional}
		}
	}
	return out
}

func checkObject(t *testing.T, doc, name string, schema object, typ reflect.Type) {
	t.Helper()
	properties, _ := schema["properties"].(object)
	fields := fieldsOf(typ)
	same(t, doc+": field of "+name, properties, fields)
	required := words(schema["required"])
	for f, is := range fields {
		if want := !is.optional; slices.Contains(required, f) != want {
			t.Errorf("%s: %s.%s: required is not %v", doc, name, f, want)
		}
		if property, ok := properties[f].(object); ok {
			if problem := mismatch(t, doc, property, is.typ, !is.optional); problem != "" {
				t.Errorf("%s: %s.%s: %s", doc, name, f, problem)
			}
		}
	}
	for _, r := range required {
		if _, ok := fields[r]; !ok {
			t.Errorf("%s: %s requires %s, which it does not have", doc, name, r)
		}
	}
}

// mismatch says how a property differs from a Go type. A pointer that is always
// written may be null.
func mismatch(t *testing.T, doc string, property object, typ reflect.Type, always bool) string {
	t.Helper()
	nullable := false
	if typ.Kind() == reflect.Pointer {
		typ, nullable = typ.Elem(), always && schemaName(typ.Elem()) != "Error"
	}
	want := typeName(typ)
	if name := schemaName(typ); name != "" {
		want = name
	}
	is, null := described(property)
	if is != want || null != nullable {
		return fmt.Sprintf("it is %s (null %v), the document says %s (null %v)", want, nullable, is, null)
	}
	if typ == reflect.TypeFor[time.Time]() && property["format"] != "date-time" {
		return "it is a time"
	}
	if typ.Kind() == reflect.Slice && typ != anyJSON {
		items, _ := property["items"].(object)
		return mismatch(t, doc, items, typ.Elem(), true)
	}
	return ""
}

// described is the type that a property has, or the schema that it refers to, and
// whether it may be null.
func described(property object) (name string, null bool) {
	if ref, ok := property["$ref"].(string); ok {
		return ref[strings.LastIndexByte(ref, '/')+1:], false
	}
	if one, ok := property["oneOf"].([]any); ok && len(one) == 2 {
		name, _ = described(one[0].(object))
		_, null = described(object{"type": []any{one[1].(object)["type"]}})
		return name, null
	}
	switch typ := property["type"].(type) {
	case string:
		return typ, false
	case []any:
		for _, v := range typ {
			if v == "null" {
				null = true
			} else {
				name = fmt.Sprint(v)
			}
		}
	}
	return name, null
}

// schemaName is the schema of a type, "" when it has none.
func schemaName(typ reflect.Type) string {
	for _, kinds := range schemaTypes {
		for name, other := range kinds {
			if typ == other {
				return name
			}
		}
	}
	return ""
}

// anyJSON is a field that may be anything: no type is documented for it.
var anyJSON = reflect.TypeFor[json.RawMessage]()

// typeName is what JSON makes of a type that has no schema.
func typeName(typ reflect.Type) string {
	if typ == anyJSON {
		return ""
	}
	switch typ.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return "integer"
	case reflect.Float32:
		return "number"
	case reflect.Slice:
		return "array"
	case reflect.String:
		return "string"
	}
	switch typ {
	case reflect.TypeFor[time.Time]():
		return "string"
	case reflect.TypeFor[ocp.Frame]():
		return "object" // as its own protocol has it
	}
	return typ.String()
}
