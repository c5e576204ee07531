package plan

// Reasons of problems, of events and of the metric.
const (
	ReasonPodCIDR     = "PodCIDRRefused"   // a podCIDR would do harm
	ReasonUnreachable = "NodeUnreachable"  // no way to a node's pods
	ReasonRoute       = "RouteNotReplaced" // another program has a route to a podCIDR
	ReasonNoKey       = "NotEncrypted"     // WireGuard does not reach a node, and packets must not go unencrypted

	ReasonGateway = "EgressGatewayUnreachable" // the node that announces pods' egress address is not reached

	ReasonNotAnnounced = "NotAnnounced" // no router announces a podCIDR

	ReasonConfigOrder = "CNIConfigNotFirst" // the runtime uses another program's CNI configuration
	ReasonEgressKept  = "EgressRulesKept"   // the API server lacks most pods that leave with an egress address
	ReasonOverShare   = "PodOverShare"      // a pod takes more than its share of what all pods of the node use
)

// A Problem is an error that another try would not mend.
type Problem struct {
	Node    string // the node in question; empty: this machine
	Reason  string
	Message string // one line for a person
}
