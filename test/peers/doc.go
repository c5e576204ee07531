// Package peers compares Fairway with the real kube-proxy, built from Kubernetes' own
// source, by packets.
//
//	                        ┌─→ kube-proxy    in node-1 of one network ──┐ the same packets:
//	random objects ─→ API ──┤                                            ├ verdict, endpoints and
//	  (one seed)     server └─→ fairway agent in node-1 of its twin ─────┘ source must agree
//
// It is a module of its own because k8s.io/kubernetes is none that a product should
// depend on; all of it is tests and measurements. What differs on purpose is in
// docs/kube-proxy-differences.md, and in one table here (differences_test.go) that
// names the document's headings.
//
// Seeds are fixed, 1 to 500; any number, from any:
//
//	SEEDS=5000 FIRST_SEED=100000 go test -run TestSamePackets -timeout 2h .
package peers
