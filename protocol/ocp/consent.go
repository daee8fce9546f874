package ocp

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Subject is a provider as consent sees it: who it is now, where it is and what it
// does with data.
type Subject struct {
	// Provider is the host's own name for it, under which it is configured; not what it
	// says of itself.
	Provider string
	Name     string // as it calls itself
	// URL is where it is asked: of a stdio provider, its command and the file that it
	// starts; of another node's, that node's identity.
	URL      string
	DataFlow DataFlow
}

// Digest tells this subject from any other: whoever was shown it can say so later.
func (s Subject) Digest() string {
	parts := append([]string{s.Provider, s.Name, s.URL, fmt.Sprint(s.DataFlow.Reads, s.DataFlow.Writes, s.DataFlow.Egress)}, sortedSet(s.DataFlow.EgressScopes)...)
	return Digest(fmt.Sprintf("%q", parts))
}

// Consent is that a person lets a provider have queries that leave the machine. It
// holds for the Subject that was shown, and until it is revoked.
type Consent struct {
	Provider string
	Name     string
	URL      string
	DataFlow DataFlow
	// GrantedScope says in words what leaves, and where to.
	GrantedScope string
	GrantedAt    time.Time
	GrantedBy    string // a name, "" where it is not known
}

// Consents are the consents of a host, at most one for a provider. The zero value is
// empty. It is not safe for concurrent use, and a copy shares its records.
type Consents struct {
	records map[string]Consent
}

// ConsentRequiredError says that a provider may not be asked yet. Nothing was sent.
type ConsentRequiredError struct {
	Provider string
	DataFlow DataFlow
	// Changed is what differs from what there was consent for: "name", "address or
	// program", "data flow". It is empty where there was none.
	Changed []string
}

func (e *ConsentRequiredError) Error() string {
	if len(e.Changed) > 0 {
		return fmt.Sprintf("provider %s needs consent again: its %s changed since it was given", e.Provider, strings.Join(e.Changed, " and "))
	}
	return fmt.Sprintf("provider %s sends data off this machine and needs consent first", e.Provider)
}

// Record stores a consent in place of an earlier one for the same provider. It must
// name its provider and what it permits.
func (c *Consents) Record(consent Consent) error {
	switch {
	case isBlank(consent.Provider):
		return errors.New("consent names no provider")
	case isBlank(consent.GrantedScope):
		return errors.New("consent does not say what may leave; describe it in words")
	}
	if c.records == nil {
		c.records = make(map[string]Consent)
	}
	consent.DataFlow.EgressScopes = slices.Clone(consent.DataFlow.EgressScopes)
	c.records[consent.Provider] = consent
	return nil
}

// Revoke forgets the consent for a provider and returns it. From then on the provider
// needs consent again.
func (c *Consents) Revoke(provider string) (Consent, bool) {
	consent, ok := c.records[provider]
	delete(c.records, provider)
	return consent, ok
}

// Get returns the consent for a provider, whether or not it still fits.
func (c *Consents) Get(provider string) (Consent, bool) {
	consent, ok := c.records[provider]
	return consent, ok
}

// All returns the consents, sorted by provider.
func (c *Consents) All() []Consent {
	list := make([]Consent, 0, len(c.records))
	for _, consent := range c.records {
		list = append(list, consent)
	}
	slices.SortFunc(list, func(a, b Consent) int { return strings.Compare(a.Provider, b.Provider) })
	return list
}

// Permits tells whether a provider may be asked: nil if nothing leaves the machine or
// there is consent for exactly this subject, else *ConsentRequiredError.
func (c *Consents) Permits(s Subject) error {
	if !s.DataFlow.Egress {
		return nil
	}
	consent, ok := c.records[s.Provider]
	if !ok {
		return &ConsentRequiredError{Provider: s.Provider, DataFlow: s.DataFlow}
	}
	var changed []string
	if consent.Name != s.Name {
		changed = append(changed, "name")
	}
	if consent.URL != s.URL {
		changed = append(changed, "address or program")
	}
	if !consent.DataFlow.Equal(s.DataFlow) {
		changed = append(changed, "data flow")
	}
	if len(changed) > 0 {
		return &ConsentRequiredError{Provider: s.Provider, DataFlow: s.DataFlow, Changed: changed}
	}
	return nil
}

// Equal reports whether two data flows are the same; the order of scopes is nothing.
func (d DataFlow) Equal(other DataFlow) bool {
	if d.Reads != other.Reads || d.Writes != other.Writes || d.Egress != other.Egress {
		return false
	}
	return slices.Equal(sortedSet(d.EgressScopes), sortedSet(other.EgressScopes))
}

func sortedSet(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

// consentJSON is a consent in the form of the reference host's store, with what it is
// bound to beside it. One without provider_name and url, as that host writes it, fits
// no provider here: it has to be given again.
type consentJSON struct {
	ProviderID   string    `json:"provider_id"`
	ProviderName string    `json:"provider_name"`
	URL          string    `json:"url"`
	DataFlow     DataFlow  `json:"data_flow"`
	GrantedScope string    `json:"granted_scope"`
	GrantedAt    time.Time `json:"granted_at,omitzero"`
	GrantedBy    string    `json:"granted_by,omitempty"`
}

type consentsJSON struct {
	Records map[string]consentJSON `json:"records"`
}

// MarshalJSON writes the form that the reference host's store has.
func (c Consents) MarshalJSON() ([]byte, error) {
	out := consentsJSON{Records: make(map[string]consentJSON, len(c.records))}
	for id, r := range c.records {
		out.Records[id] = consentJSON{r.Provider, r.Name, r.URL, r.DataFlow, r.GrantedScope, r.GrantedAt, r.GrantedBy}
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote. A record that is kept under another
// provider than it names is an error, and the consents stay as they were.
func (c *Consents) UnmarshalJSON(data []byte) error {
	var in consentsJSON
	if err := json.Unmarshal(data, &in); err != nil {
		return fmt.Errorf("read consents: %w", err)
	}
	var read Consents
	for id, r := range in.Records {
		if r.ProviderID != id {
			return fmt.Errorf("read consents: the record of %q names %q", id, r.ProviderID)
		}
		if err := read.Record(Consent{r.ProviderID, r.ProviderName, r.URL, r.DataFlow, r.GrantedScope, r.GrantedAt, r.GrantedBy}); err != nil {
			return fmt.Errorf("read consents: record %q: %w", id, err)
		}
	}
	*c = read
	return nil
}
