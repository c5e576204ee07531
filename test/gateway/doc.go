// Package gateway runs the conformance tests of sigs.k8s.io/gateway-api against a lab. It also checks RoutePolicies there, and
// against their CustomResourceDefinition.
//
//	hack/gateway-conformance ─▶ fairway-lab up --gateway ─▶ gateway.test, as the client outside ─▶ API server, and
//	                                ▲                                                                    the Gateways' addresses
//	                    gateway.tar: echo-basic of the suite, fairway dns in place of CoreDNS
//
// It is a module of its own, because the suite needs controller-runtime, which nothing else does. The tests and their
// backends are the upstream ones; nothing of them is copied here. report.yaml is the suite's report of the last run, and
// docs/conformance.md has its figures.
package gateway
