package cni

import "testing"

// FuzzConf: whatever the runtime hands over, with what pods ask for in it, is read or refused.
func FuzzConf(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.1.0","name":"fairway","type":"fairway-cni","mtu":1400,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/24"}]]},
		"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"tcp","hostIP":"::ffff:10.0.0.1"},{"hostPort":-1}],"bandwidth":{"ingressRate":9000,"egressBurst":1}},
		"prevResult":{"cniVersion":"1.1.0","interfaces":[{}],"ips":[{"address":"10.0.0.2/24","interface":-1}]}}`), "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b")
	f.Add([]byte(`{"ipam":[],"runtimeConfig":null}`), ";=;K8S_POD_NAME=")
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		_ = podName(args)
		conf, err := parseConf(stdin)
		if err != nil {
			return
		}
		all, err := checkMappings(conf.RuntimeConfig.PortMappings)
		for _, p := range all {
			if err == nil && (p.HostPort == 0 || p.ContainerPort == 0) {
				t.Errorf("host port %+v is taken", p)
			}
		}
		_ = conf.RuntimeConfig.Bandwidth.check()
		if _, err := withDataDir(stdin, "/run/x"); err != nil {
			t.Errorf("%q is read, and cannot be written: %v", stdin, err)
		}
	})
}
