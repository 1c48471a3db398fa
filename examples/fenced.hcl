# A task that may resolve names and reach one network by HTTPS. Others reach it on its own port only.
#
# The first rule that matches decides: the task's, the group's, the node's, the cluster's, then the nearest `default`.
# Metadata addresses of clouds and the addresses of servers are always out of reach.
# Show refused traffic: muster net fenced --denied --follow
job "fenced" {
  type = "service"

  group "shop" {
    network {
      mode = "host"
      port "http" {}

      policy {
        egress {
          default = "deny"
          rate    = "100mbit"

          rule "names" {
            action   = "allow"
            protocol = "udp"
            ports    = ["53"]
          }
          rule "payments" {
            action   = "allow"
            protocol = "tcp"
            peers    = ["198.51.100.0/24", "2001:db8:51::/48"]
            ports    = ["443", "8443-8444"]
            log      = true
          }
        }
      }
    }

    task "server" {
      driver = "native"

      config {
        command = "/usr/bin/perl"
        args = ["-MIO::Socket::INET", "-e", <<-PERL
          $| = 1;
          while (1) {
            my $socket = IO::Socket::INET->new(PeerAddr => "203.0.113.7:443", Timeout => 1);
            print $socket ? "open\n" : "shut: $!\n";
            sleep 1;
          }
        PERL
        ]
      }

      policy {
        ingress {
          default = "deny"

          rule "office" {
            action   = "allow"
            protocol = "tcp"
            peers    = ["10.0.0.0/8", "127.0.0.0/8"]
          }
        }
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
