package api

import "strings"

// MaxName is the longest name of a node or controller, in bytes.
const MaxName = 32

// NameRule says in words what ValidName checks, for error messages.
const NameRule = "1 to 32 of a-z, 0-9 and '-', not starting or ending with '-'"

// ValidName reports whether s may name a node or a controller:
// ^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$ (semantics 9).
func ValidName(s string) bool {
	if len(s) == 0 || len(s) > MaxName || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// SuggestName turns a host name or the like into a valid name, or "" when
// nothing usable is left of it.
func SuggestName(s string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(s) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			b.WriteRune(r)
		default:
			b.WriteByte('-')
		}
		if b.Len() == MaxName {
			break
		}
	}
	return strings.Trim(b.String(), "-")
}

// Role says what a credential may do (semantics 11).
type Role string

// The roles. A node serves tasks and may dispatch as a controller; a controller
// sees its own tasks only; an operator sees and may do everything.
const (
	RoleNode       Role = "node"
	RoleController Role = "controller"
	RoleOperator   Role = "operator"
)

// Valid reports whether r is one of the three roles.
func (r Role) Valid() bool {
	return r == RoleNode || r == RoleController || r == RoleOperator
}
