// Package gateway reads the objects of Gateway API and Ingress for internal/gateway, and writes their statuses.
//
//	gateway     Objects                 ─→ gateway.Compiler ─→ gateway/server
//	controller  Objects, Controller     ─→ statuses, Services and EndpointSlices of Gateways, the ConfigMap of bind ports
//
// The objects of gateway.networking.k8s.io and RoutePolicies are optional: without their CustomResourceDefinitions only
// Ingresses are served.
// Secrets and ConfigMaps are read by name, after an object that counts has named them (Fetcher).
//
// The kinds of each consumer:
//
//	consumer      waits for                                     until the API server refuses them
//	Objects       services, namespaces, ingresses, ingressclasses
//	                                                            gatewayclasses, gateways, listenersets, httproutes, grpcroutes,
//	                                                            tlsroutes, tcproutes, udproutes, referencegrants,
//	                                                            backendtlspolicies, routepolicies
package gateway
