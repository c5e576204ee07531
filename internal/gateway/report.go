package gateway

import "github.com/fairway-net/fairway/internal/api"

// A Condition is a condition as the API writes it.
type Condition struct {
	Type    string
	Status  bool
	Reason  string
	Message string
}

// A Report is what an object's status and events should say. The zero value says nothing.
type Report struct {
	Generation int64
	Conditions []Condition
	Listeners  []ListenerReport // of a Gateway or a ListenerSet
	Parents    []ParentReport   // of a route, and ancestors of a BackendTLSPolicy
	Sets       int              // of a Gateway: attached ListenerSets
	Features   []string         // of a GatewayClass
	Problems   []api.Problem    // for events
}

// A ListenerReport is the status of a listener.
type ListenerReport struct {
	Name       string
	Kinds      []GroupKind
	Attached   int
	Conditions []Condition
}

// A ParentReport is the status of a route at one parent.
type ParentReport struct {
	Parent     ObjectRef
	Conditions []Condition
}

// Needs are the objects that the others name. The edge fetches these, and no others.
type Needs struct {
	Secrets, ConfigMaps, Services []api.Name
}
