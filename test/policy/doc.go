// Package policy runs the conformance tests of sigs.k8s.io/network-policy-api against a lab: all profiles and
// features that it has.
//
//	hack/policy-conformance ─▶ fairway-lab up --network-policy ─▶ policy.test (network-policy-api/conformance) ─▶ API server of the lab
//	                                 ▲                                                              exec in its pods
//	                    policy.tar: agnhost, and sctp for what the kernel lacks
//
// It is a module of its own, because the tests need controller-runtime, which nothing else does. The tests are the
// upstream ones; nothing of them is copied here. docs/networkpolicy-tests.md has the last result, and why each test that
// does not pass does not.
package policy
