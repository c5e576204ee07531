package ingress

import "github.com/fairway-net/fairway/internal/kube/gateway"

// The types of a RoutePolicy, as the gateway reads it.
type (
	RoutePolicy     = gateway.RoutePolicy
	RoutePolicySpec = gateway.RoutePolicySpec
	PolicyTarget    = gateway.PolicyTarget
	Clients         = gateway.Clients
	RateLimit       = gateway.RateLimit
	BasicAuth       = gateway.BasicAuth
	Named           = gateway.Named
	ForwardAuth     = gateway.ForwardAuth
	Session         = gateway.Session
	Timeouts        = gateway.Timeouts
	Retry           = gateway.Retry
)
